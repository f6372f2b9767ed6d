"""Wire protocols as pure cores: bytes in, values out; no socket, no clock, no asyncio."""
