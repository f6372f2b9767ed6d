"""The asyncio shells: sockets, timers, signals, and the order of starting and stopping."""
