"""Sanitizing of untrusted text for a terminal or a web page."""

from __future__ import annotations

import unicodedata

_JOINERS = "\u200c\u200d"  # needed in several writing systems and in emoji


def visible(text: str) -> str:
    """Replace characters that hide or reorder text (controls, bidi marks, lone surrogates) with `⟨U+XXXX⟩`.

    A model or a tool may write anything, such as terminal escape sequences or marks that reverse text.
    """
    return text if text.isascii() and text.isprintable() else "".join(map(_visible_character, text))


def _visible_character(character: str) -> str:
    if character in "\n\t" or character in _JOINERS or unicodedata.category(character) not in ("Cc", "Cf", "Cs"):
        return character
    return f"⟨U+{ord(character):04X}⟩"
