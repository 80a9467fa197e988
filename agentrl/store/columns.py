"""Columns of Python values as Arrow arrays and back, a column at a time: several times as fast as value by value."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from itertools import accumulate, chain, pairwise
from typing import Any, Literal, TypeAlias, TypeVar

import pyarrow as pa

from agentrl.store.text import original, writable

V = TypeVar("V")

Letter: TypeAlias = Literal["i", "q", "Q", "d"]

_LETTERS: dict[pa.DataType, Letter] = {pa.int32(): "i", pa.int64(): "q", pa.uint64(): "Q", pa.float64(): "d"}
"""What `memoryview` calls the numbers of a buffer."""


def arrow_array(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Structs are objects with the attributes of their fields, maps are dictionaries, text is made writable.

    Any: what `field` says.

    Raises:
        pa.ArrowException, TypeError, OverflowError, AttributeError: a value is not what `field` says.
    """
    array = _array(values, field.type)
    if array.null_count and not field.nullable:
        raise TypeError(f"'{field.name}' must not be None")
    return array


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(kind):
        return pa.array([None if text is None else writable(text) for text in values], kind)
    if pa.types.is_struct(kind):
        parts = [arrow_array([getattr(value, field.name) for value in values], field) for field in kind]
        return pa.StructArray.from_arrays(parts, fields=list(kind))
    if pa.types.is_list(kind):
        nulls = pa.array([items is None for items in values], pa.bool_())
        lists = [() if items is None else items for items in values]
        items = arrow_array(list(chain.from_iterable(lists)), kind.value_field)
        return pa.ListArray.from_arrays(_ends(lists), items, type=kind, mask=nulls)
    if pa.types.is_map(kind):
        keys = arrow_array(list(chain.from_iterable(values)), kind.key_field)
        items = arrow_array([value for entries in values for value in entries.values()], kind.item_field)
        return pa.MapArray.from_arrays(_ends(values), keys, items, type=kind)
    return pa.array(values, kind)


def _ends(lists: Sequence[Sized]) -> pa.Array:
    return pa.array([0, *accumulate(map(len, lists))], pa.int32())


def python_values(array: pa.Array) -> list[Any]:
    """Lists as lists, structs as tuples of their fields, maps as dictionaries, text as it was before `writable`.

    Structs and numbers are never null here. Any: what the array holds.
    """
    if letter := _LETTERS.get(array.type):
        return _numbers(array, letter)
    if pa.types.is_string(array.type):
        return _texts(array)
    if pa.types.is_list(array.type):
        return sliced(array, python_values(array.values))
    if pa.types.is_map(array.type):
        pairs = zip(python_values(array.keys), python_values(array.items), strict=True)
        return [dict(entries) for entries in sliced(array, list(pairs))]
    if pa.types.is_struct(array.type):
        return list(zip(*map(python_values, array.flatten()), strict=True))
    values: list[Any] = array.to_pylist()
    return values


def sliced(array: pa.ListArray | pa.MapArray, items: Sequence[V]) -> list[Any]:
    """The items of each list of `array`, where `items` are those of all of them; None for a list that is null.

    Any: list[V] or None, which the schema knows.
    """
    ends = python_values(array.offsets)
    lists = [items[start:end] for start, end in pairwise(ends)]
    if not array.null_count:
        return lists
    return [items if there else None for items, there in zip(lists, array.is_valid().to_pylist(), strict=True)]


def _numbers(array: pa.Array, letter: Letter) -> list[Any]:
    buffer = array.buffers()[1]
    if not len(array) or buffer is None:
        return []
    return memoryview(buffer).cast("B").cast(letter)[array.offset : array.offset + len(array)].tolist()


def _texts(array: pa.StringArray) -> list[Any]:
    """Each different text once: authors, names and outcomes repeat."""
    encoded = array.dictionary_encode()
    texts = [original(text) for text in encoded.dictionary.to_pylist()]
    return [None if index is None else texts[index] for index in encoded.indices.to_pylist()]
