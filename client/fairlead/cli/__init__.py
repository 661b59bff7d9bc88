"""The command line, which communicates with brokers only by HTTP."""
