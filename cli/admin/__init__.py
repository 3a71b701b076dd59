"""The subcommands of `rmq-admin`."""
