"""Output of the commands: rendering, standard output, the terminal."""
