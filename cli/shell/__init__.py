"""What all commands share: options, settings, logging, exit codes."""
