"""Invented towns and their mayors: documents, questions about them, and demonstrations that search."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Message = dict[str, object]
Search = Callable[[str], str]
"""Query -> text that the tool shows to the model."""

CONSONANTS, VOWELS = "bdfgklmnprstv", "aeiou"
_SYLLABLE = f"[{CONSONANTS}][{VOWELS}]"
_CAPITAL = f"[{CONSONANTS.upper()}][{VOWELS}]"
NAME_PARTS = "|".join(
    [
        rf"{_CAPITAL}(?={_SYLLABLE * 2}(?![a-z]))",
        rf"(?<={_CAPITAL}){_SYLLABLE}(?={_SYLLABLE}(?![a-z]))",
        rf"(?<={_CAPITAL}{_SYLLABLE}){_SYLLABLE}(?![a-z])",
    ]
)
"""Regular expression of the three syllables of a name; each syllable is a token."""
KINDS = {"mayor": 1, "person": 1, "both": 2}
"""Kinds of questions, and their relative frequency. Questions of the last kind need two searches."""
GIVE_UP = "I do not know"


@dataclass(frozen=True)
class Town:
    name: str
    mayor: str
    born: str

    @property
    def documents(self) -> list[dict[str, str]]:
        return [
            {"title": self.name, "text": f"The mayor of {self.name} is {self.mayor}."},
            {"title": self.mayor, "text": f"{self.mayor} was born in {self.born}."},
        ]


@dataclass(frozen=True)
class Question:
    town: Town
    kind: str

    @property
    def name(self) -> str:
        """The name in the question."""
        return self.town.mayor if self.kind == "person" else self.town.name

    @property
    def answer(self) -> str:
        return self.town.mayor if self.kind == "mayor" else self.town.born

    @property
    def prompt(self) -> list[Message]:
        text = {
            "mayor": f"Who is the mayor of {self.town.name}?",
            "person": f"Where was {self.town.mayor} born?",
            "both": f"Where was the mayor of {self.town.name} born?",
        }[self.kind]
        return [{"role": "system", "content": "You search for answers."}, {"role": "user", "content": text}]


def draw_towns(rng: random.Random, num_towns: int) -> list[Town]:
    """Towns whose names are different from each other, and from the names of all mayors."""
    names = distinct_names(rng)
    towns, mayors = ([next(names) for _ in range(num_towns)] for _ in range(2))
    return [Town(name, mayor, rng.choice(towns)) for name, mayor in zip(towns, mayors, strict=True)]


def distinct_names(rng: random.Random) -> Iterator[str]:
    """Endless iterator of different names, each of three syllables."""
    seen: set[str] = set()
    while True:
        name = "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(3)).capitalize()
        if name not in seen:
            seen.add(name)
            yield name


def draw_question(rng: random.Random, town: Town) -> Question:
    return Question(town, rng.choices([*KINDS], [*KINDS.values()])[0])


def right_trace(question: Question, search: Search) -> list[Message]:
    """A correct demonstration: a search for the name in the question, a second one if needed, and the answer."""
    second = _searched(question.town.mayor, search) if question.kind == "both" else []
    return [*question.prompt, *_searched(question.name, search), *second, _answered(question.answer)]


def wrong_trace(question: Question, search: Search, rng: random.Random) -> list[Message]:
    """A demonstration with one of the teacher's mistakes; the most common one is to answer with a wrong name."""
    first = _searched(question.name, search)
    wrong = question.town.mayor if question.kind == "both" else question.name
    habits = {
        "gives up at once": (3, [_said(GIVE_UP)]),
        "answers a wrong name": (6, [*first, _answered(wrong)]),
        "searches for a common word": (2, [*_searched("mayor", search), _said(GIVE_UP)]),
        "gives up after one search": (4, [*first, _said(GIVE_UP)]),
    }
    _, turns = rng.choices([*habits.values()], [weight for weight, _ in habits.values()])[0]
    return [*question.prompt, *turns]


def _searched(query: str, search: Search) -> list[Message]:
    function = {"name": "search", "arguments": {"query_list": [query]}}
    return [
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
        {"role": "tool", "name": "search", "content": search(query)},
    ]


def _answered(name: str) -> Message:
    return _said(f"<answer>{name}</answer>")


def _said(text: str) -> Message:
    return {"role": "assistant", "content": text}
