"""Workload files as they should not be: a valid one with parts exchanged, doubled, or broken.

Law: a seed gives one text. Half of the changes are made to the tree, so that the text stays YAML
and reaches what reads it; the others to the characters.
"""

from __future__ import annotations

import random
from typing import Any

import yaml

ODD_TEXTS = (
    "",
    " ",
    "\u202e\u200b",
    "\x00",
    "\ud800",
    "\ufeff",
    "é" * 70,
    "ﷺ" * 300,
    "🧨",
    "a" * 5000,
    "${",
    "${HOME",
    "${A:-${B}}",
    "$${A}",
    "${NOT_SET_ANYWHERE}",
    "`t`",
    "'; DROP TABLE t; --",
    "../../../etc/passwd",
    "/dev/zero",
    "s3://",
    "file://\x01",
    "http://[::1",
    "%20",
    "nul",
    "SELECT",
    "(" * 400,
    "SELECT g FROM t WHERE " + "NOT " * 600 + "TRUE",
)
ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    2**31,
    2**63,
    -(2**63) - 1,
    10**400,
    1e308,
    float("inf"),
    float("nan"),
    0.1,
    [],
    {},
    [[]],
    [None],
    {"": ""},
    {"t": None},
    [{"name": None}],
)
ODD_PLAIN = (
    "0x1F",
    "1_000",
    "1:30:00",
    "~",
    "yes",
    "2024-02-30",
    "2024-01-01T00:00:00+99:00",
    "!!binary aGk=",
    "!!python/object/apply:os.system [echo]",
    "!!set {a, b}",
    "!!omap [a: 1]",
    "!!timestamp x",
    "!<tag:x> y",
    "&a *a",
    "&a [*a]",
    "*nowhere",
    "<<: *x",
    "{<<: {version: 2}}",
    "{<<: [1, 2]}",
    "? [a, b]",
    "? {a: b}\n: c",
    "|\n  x",
    ">-\n",
    "1e999999",
    "9" * 5000,
    "0." + "1" * 400,
    "-.inf",
    "@x",
    "%TAG ! x",
    "--- {}\n--- {}",
    "...",
)
KEYS = ("tables", "queries", "t", "q", "g", "sql", "sketch", "params", "where", "name", "version")


def changed(seed: int, valid: str) -> str:
    """The text of this seed."""
    draw = random.Random(seed)
    if seed % 2:
        tree = yaml.safe_load(valid)
        for _ in range(draw.choice((1, 1, 1, 2, 5))):
            tree = _other_tree(draw, tree)
        if draw.random() < 0.1:
            tree = _deep(draw, tree)
        text = yaml.dump(tree, sort_keys=False, allow_unicode=draw.random() < 0.5)
        return _laughing(draw, text) if draw.random() < 0.05 else text
    text = valid
    for _ in range(draw.choice((1, 1, 2, 8))):
        text = _other_text(draw, text)
    return text


def _other_tree(draw: random.Random, tree: Any) -> Any:
    """The tree with one place changed, at a depth of its own."""
    if not isinstance(tree, dict | list) or not tree or draw.random() < 0.15:
        return _in_place_of(draw, tree)
    if isinstance(tree, list):
        place = draw.randrange(len(tree))
        new = [*tree]
        match draw.randrange(5):
            case 0:
                del new[place]
            case 1:
                new.append(tree[place])
            case _:
                new[place] = _other_tree(draw, tree[place])
        return new
    key = draw.choice(list(tree))
    result = dict(tree)
    match draw.randrange(7):
        case 0:
            del result[key]
        case 1:
            result[_key(draw)] = result.pop(key)
        case 2:
            result[_key(draw)] = tree[key]
        case _:
            result[key] = _other_tree(draw, tree[key])
    return result


def _key(draw: random.Random) -> Any:
    return draw.choice((*KEYS, *ODD_TEXTS[:12], 1, None, True, 1.5, "T", "Q", "ſketch"))


def _in_place_of(draw: random.Random, old: Any) -> Any:
    match draw.randrange(5):
        case 0:
            return draw.choice(ODD_TEXTS)
        case 1 if isinstance(old, str) and old:
            cut = draw.randrange(len(old))
            return old[:cut] + draw.choice(ODD_TEXTS) + old[cut:]
        case 2:
            return [old] if draw.random() < 0.5 else {"t": old}
        case 3:
            return str(old)
        case _:
            return draw.choice(ODD_VALUES)


def _deep(draw: random.Random, tree: Any) -> Any:
    for _ in range(draw.choice((20, 45, 200))):
        tree = [tree] if draw.random() < 0.5 else {"queries": tree}
    return tree


def _laughing(draw: random.Random, text: str) -> str:
    levels = draw.choice((5, 12, 30))
    lines = ["l0: &l0 [ha, ha, ha, ha, ha, ha, ha, ha, ha]"]
    for level in range(1, levels):
        lines.append(f"l{level}: &l{level} [{', '.join([f'*l{level - 1}'] * 9)}]")
    return "\n".join(lines) + "\n" + text


def _other_text(draw: random.Random, text: str) -> str:
    lines = text.split("\n")
    number = draw.randrange(len(lines))
    line = lines[number]
    place = draw.randrange(len(text)) if text else 0
    match draw.randrange(9):
        case 0:
            lines.insert(number, line)
        case 1:
            del lines[number]
        case 2:
            lines[number] = " " * draw.randrange(4) + line.lstrip()
        case 3:
            lines[number] = line.partition(":")[0] + ": " + draw.choice(ODD_PLAIN)
        case 4:
            lines[number] = line.partition(":")[0] + ": " + draw.choice("[{'\"|>&*!%@`")
        case 5:
            return text[:place] + text[place + draw.choice((1, 3, 40)) :]
        case 6:
            return text[:place] + draw.choice((*ODD_TEXTS[:18], *"\t\r{}[]:,#&*!|>'\"%@`-?"))
        case 7:
            odd = draw.choice((*ODD_TEXTS[:12], *"\t\r{}[]:,#&*!|>'\"%@`-?"))
            return text[:place] + odd + text[place:]
        case _:
            depth = draw.choice((30, 41, 3000))
            lines[number] = line.partition(":")[0] + ": " + "[" * depth + "]" * depth
    return "\n".join(lines)
