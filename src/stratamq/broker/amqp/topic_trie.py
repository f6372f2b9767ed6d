"""Patterns of a topic exchange as a trie: cost of a look-up grows with the words of the key, not with the bindings.

Words are split at dots; ``*`` stands for one word, ``#`` for any number of them. Empty words count.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class _Node(Generic[T]):
    __slots__ = ("children", "values")

    def __init__(self) -> None:
        self.children: dict[str, _Node[T]] = {}
        self.values: dict[T, None] = {}


class TopicTrie(Generic[T]):
    """A set of (pattern, value) pairs that can be asked which values match a key."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()

    def add(self, pattern: str, value: T) -> None:
        """Add a pair; adding it twice changes nothing."""
        node = self._root
        for word in pattern.split("."):
            node = node.children.setdefault(word, _Node())
        node.values[value] = None

    def remove(self, pattern: str, value: T) -> None:
        """Take a pair out, and the branches that it alone needed."""
        path = [self._root]
        words = pattern.split(".")
        for word in words:
            found = path[-1].children.get(word)
            if found is None:
                return
            path.append(found)
        path[-1].values.pop(value, None)
        for parent, word, node in zip(path[-2::-1], reversed(words), path[:0:-1], strict=True):
            if node.values or node.children:
                break
            del parent.children[word]

    def match(self, key: str) -> set[T]:
        """The values of all patterns that match ``key``."""
        words = key.split(".")
        found: set[T] = set()
        seen: set[tuple[int, int]] = set()
        stack = [(self._root, 0)]
        end = len(words)
        while stack:
            node, at = stack.pop()
            if (id(node), at) in seen:
                continue
            seen.add((id(node), at))
            children = node.children
            hashes = children.get("#")
            if hashes is not None:
                stack.extend((hashes, rest) for rest in range(at, end + 1))
            if at == end:
                found.update(node.values)
                continue
            for word in {words[at], "*"} - {"#"}:
                child = children.get(word)
                if child is not None:
                    stack.append((child, at + 1))
        return found

    def __iter__(self) -> Iterator[T]:
        stack = [self._root]
        while stack:
            node = stack.pop()
            yield from node.values
            stack.extend(node.children.values())
