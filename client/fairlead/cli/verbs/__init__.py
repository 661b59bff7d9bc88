"""The commands, each in its own module; `main` imports the module of a command when the command is called."""
