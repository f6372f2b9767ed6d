"""The command line: `stratamq <noun> <verb>`."""
