"""How long requests to servers may take: as long as an `asyncio.timeout` around each of them says."""

import aiohttp

UNTIMED = aiohttp.ClientTimeout(total=None)
"""For every session. aiohttp's own total time-out takes a cancellation of the same moment for its own (3.14.5: its
contexts are nested, and each takes one back), so that whoever is cancelled goes on, and a wait may never end."""
