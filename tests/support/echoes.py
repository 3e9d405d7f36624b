"""A played coordinator echoes as a real one does, whatever else it says.

On a busy computer a silo may hear nothing for so long that it asks for an echo.
"""

import asyncio
from collections.abc import AsyncIterator

from silomix_proto import channel_pb2

Event = channel_pb2.ChannelEvent


async def with_echoes(
    events: AsyncIterator[Event], asked: "asyncio.Queue[bytes]"
) -> AsyncIterator[Event]:
    """The events, and each echo as soon as it is asked for; never between a round and its query."""
    saying = asyncio.ensure_future(anext(events, None))
    asking = asyncio.ensure_future(asked.get())
    opened = False
    try:
        while True:
            waited_for = {saying} if opened else {saying, asking}
            await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
            if asking.done() and not opened:
                yield Event(echo=asking.result())
                asking = asyncio.ensure_future(asked.get())
            if saying.done():
                event = saying.result()
                if event is None:
                    return
                yield event
                opened = event.HasField("opened")
                saying = asyncio.ensure_future(anext(events, None))
    finally:
        saying.cancel()
        asking.cancel()
