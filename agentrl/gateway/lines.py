"""Lines: paths into which a tree of turns is cut. Every turn is in exactly one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agentrl.gateway.turns import Tree, Turn
from agentrl.utils.seeds import ids_digest


@dataclass(frozen=True, slots=True)
class Line:
    """Turns that follow each other.

    Attributes:
        turns: one or more turns; each continues the turn before.
        discarded: whether the client used another answer to the first turn's request instead of the first turn.
        conversation: digest of the tools and system texts with which the line's conversation began.
    """

    turns: Sequence[Turn]
    discarded: bool
    conversation: bytes

    @property
    def start(self) -> Turn | None:
        """The turn, in another line, from which this line branches off; None: the line begins a conversation."""
        return self.turns[0].parent


def lines_of(tree: Tree) -> list[Line]:
    """Cut the tree into lines, in an order that depends on timing as little as possible.

    The main conversations are those with the tools and system texts that occur in the most turns. All other
    conversations come before the main conversations. Main conversations whose first turn was discarded come before
    main conversations whose first turn was used; within each of these two sets, conversations are in the order in which
    they started. A line that branches off comes before the line from which it branches off. So the last line
    contains the end of the last main conversation.
    """
    done = [turn for turn in tree.turns if turn.message is not None]
    cut = _Cut(done)
    roots = [turn for turn in done if turn.parent is None]
    sizes = Counter(cut.roots[turn].place.conversation for turn in done)
    main = max(sizes, key=lambda each: (sizes[each], each), default=b"")
    counts = {root: _counts(root, roots) for root in roots}

    def place(root: Turn) -> tuple[bool, bytes, bool]:
        return root.place.conversation == main, root.place.conversation, counts[root]

    ordered = sorted(_waves(roots), key=place)
    return [line for root in ordered for line in cut.lines(root, root.place.conversation, counts[root])]


class _Cut:
    """Cuts the tree of finished turns. `roots` maps each turn to the first turn of its path."""

    def __init__(self, done: Sequence[Turn]) -> None:
        self.roots: dict[Turn, Turn] = {}
        self._children: dict[Turn, list[Turn]] = {}
        self._heights: dict[Turn, int] = {}
        for turn in done:
            self.roots[turn] = turn if turn.parent is None else self.roots[turn.parent]
            self._children[turn] = []
            if turn.parent is not None:
                self._children[turn.parent].append(turn)
        for turn in reversed(done):  # in `done`, a turn comes after its parent
            self._heights[turn] = 1 + max((self._heights[each] for each in self._children[turn]), default=0)

    def lines(self, turn: Turn, conversation: bytes, counts: bool) -> Iterator[Line]:
        """Yield the lines that branch off after `turn`, then the line that begins with `turn`."""
        turns = [turn]
        while children := self._children[turns[-1]]:
            following = max(children, key=lambda each: (_counts(each, children), self._heights[each], each.number))
            for other in children:
                if other is not following:
                    yield from self.lines(other, conversation, _counts(other, children))
            turns.append(following)
        yield Line(turns, not counts, conversation)


def _waves(roots: Sequence[Turn]) -> list[Turn]:
    """Sort conversations, given by their first turns, by start; sort simultaneous conversations by their prompts."""
    numbered: list[tuple[int, Turn]] = []
    for root in roots:
        wave = [other for number, other in numbered if number == numbered[-1][0]]
        follows = bool(wave) and all(_ended_before(other, root) for other in wave)
        numbered.append(((numbered[-1][0] if numbered else 0) + follows, root))
    numbered.sort(key=lambda each: (each[0], ids_digest(each[1].token_ids), each[1].draw))
    return [root for _, root in numbered]


def _ended_before(root: Turn, later: Turn) -> bool:
    """Whether the answers of `root` and of all turns below it were delivered before `later` was requested."""
    delivered = [turn.delivered for turn in _below(root)]
    return all(each is not None and each < later.num_delivered_before for each in delivered)


def _counts(turn: Turn, siblings: Sequence[Turn]) -> bool:
    """Whether the client used this turn, and not another answer to the same request.

    A turn was used if a later request contains it. If later requests contain none of the answers, the last delivered
    answer counts as used.
    """
    same = [each for each in siblings if each.place.prompt == turn.place.prompt]
    continued = [each for each in same if each.children]
    if continued:
        return turn in continued
    return turn is max(same, key=lambda each: (-1 if each.delivered is None else each.delivered, each.number))


def _below(turn: Turn) -> Iterator[Turn]:
    waiting = [turn]
    while waiting:
        yield (each := waiting.pop())
        waiting += each.children
