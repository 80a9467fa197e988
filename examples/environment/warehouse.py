"""A warehouse as an environment: the agent takes items from the shelves and ships an order."""

from __future__ import annotations

import random

from agentrl.tools import ToolError


class Warehouse:
    """One order. Every rollout has its own shelves and its own box."""

    deterministic = True

    def reset(self, order: dict[str, int], group_seed: int) -> str:
        """Fill the shelves, in the same way for all rollouts of a group. The returned text is added to the prompt."""
        rng = random.Random(group_seed)
        self.order = order
        self.shelves = {item: count + rng.randint(0, 2) for item, count in order.items()}
        self.box = dict.fromkeys(order, 0)
        self.done = False  # the conversation ends as soon as this is true
        return f"\nShelves: {self._listed(self.shelves)}"

    def take(self, item: str, count: int) -> str:
        """Put items from a shelf into the box.

        Args:
            item: name of the item.
            count: number of items.
        """
        if count > self.shelves.get(item, 0):
            raise ToolError(f"there are only {self.shelves.get(item, 0)} of '{item}'")  # the model reads this
        self.shelves[item] -= count
        self.box[item] += count
        return f"Box: {self._listed(self.box)}"

    def look(self) -> str:
        """List the items on the shelves and in the box."""
        return f"Shelves: {self._listed(self.shelves)}. Box: {self._listed(self.box)}"

    def ship(self) -> str:
        """Close the box and send it. This ends the order."""
        self.done = True
        return "shipped"

    def reward(self) -> float:
        """Return 1 if the order was shipped as asked, and less if it was not shipped or if the box is wrong."""
        wrong = sum(abs(count - self.box[item]) for item, count in self.order.items())
        return (1.0 if self.done else 0.5) / (1 + wrong)

    def _listed(self, items: dict[str, int]) -> str:
        return ", ".join(f"{count} {item}" for item, count in items.items())
