"""Whether a group pulls a topic's queues or pops from all of them.

Kept in ``config/messageRequestMode.json``.

Source: apache/rocketmq broker/.../MessageRequestModeManager.java.
"""

from __future__ import annotations

from typing import Any, Final

from stratamq.errors import InvalidArgument

PULL: Final = "PULL"
POP: Final = "POP"
SHARE_ALL: Final = 0


class RequestModes:
    """Modes by topic and group; PULL where nothing was set. ``is_dirty`` until what is stored is current."""

    def __init__(self, stored: Any = None) -> None:
        self._modes: dict[tuple[str, str], tuple[str, int]] = {}
        self.is_dirty = False
        table = stored.get("messageRequestModeMap") if isinstance(stored, dict) else None
        for topic, groups in (table or {}).items():
            for group, one in groups.items() if isinstance(groups, dict) else ():
                if isinstance(one, dict) and one.get("mode") in (PULL, POP):
                    self._modes[topic, group] = (one["mode"], int(one.get("popShareQueueNum") or 0))

    def set(self, topic: str, group: str, mode: str, share: int) -> None:
        """Set a mode. Raises InvalidArgument."""
        if mode not in (PULL, POP):
            raise InvalidArgument(f"mode is {mode!r}; allowed: PULL, POP")
        self._modes[topic, group] = (mode, share)
        self.is_dirty = True

    def find(self, topic: str, group: str) -> tuple[str, int]:
        """Mode, and with how many neighbours a member of a popping group shares its queues (0: with all)."""
        return self._modes.get((topic, group), (PULL, SHARE_ALL))

    def adopt(self, stored: Any) -> None:
        """Take another broker's table, as `as_json` gives it, in place of this one."""
        modes = RequestModes(stored)._modes
        if modes != self._modes:
            self._modes = modes
            self.is_dirty = True

    def as_json(self) -> dict[str, Any]:
        """What ``messageRequestMode.json`` and GET_ALL_MESSAGE_REQUEST_MODE hold."""
        table: dict[str, dict[str, Any]] = {}
        for (topic, group), (mode, share) in sorted(self._modes.items()):
            row = {"topic": topic, "consumerGroup": group, "mode": mode, "popShareQueueNum": share}
            table.setdefault(topic, {})[group] = row
        return {"messageRequestModeMap": table}
