"""From an error's message to one line."""

from __future__ import annotations

import re

_KEY = re.compile(r'Parser key "(?P<key>.+?)":\s*(?P<rest>.*)')
_FRAME = re.compile(
    r"Does not validate against|Subtypes:|Errors:|Problem with given class_path|Expected a path but|Given value"
)


def in_one_line(message: str) -> str:
    """Writes a message in one line.

    jsonargparse answers with a tree that holds every type that an argument might have had. Of that tree, the
    line is the path to the first leaf, and the leaf, which is what the argument was most likely meant to be.

    Example:
        >>> print(in_one_line('''Parser key "data":
        ...   Does not validate against any of the Union subtypes
        ...   Subtypes: [<class 'LightningDataModule'>, <class 'NoneType'>]
        ...   Errors:
        ...     - Problem with given class_path 'DigitsDataModule':
        ...         Parser key "batch_size":
        ...           Expected a <class 'int'>. Got value: a
        ...     - Expected a <class 'NoneType'>
        ...   Given value type: <class 'str'>'''))
        `data.batch_size`: expected int. Got value: a
    """
    if not _KEY.search(message) and not _FRAME.search(message):
        return " ".join(message.split())
    keys, leaf = [], ""
    for line in message.splitlines():
        text = line.strip(" -")
        if found := _KEY.match(text):
            keys.append(found["key"])
            text = found["rest"]
        if text and not _FRAME.match(text):
            leaf = re.sub(r"Expected a <class '(.+?)'>", r"expected \1", text)
            leaf = re.sub(r"Expected a dot import path string: (.*)", r"no class '\1'; give its import path", leaf)
            break
    # A bare type needs the value, and the first one given is that of the innermost argument.
    if leaf.startswith("expected ") and "Got value" not in leaf and (given := re.search("Given value: (.*)", message)):
        leaf = f"{leaf}. Got value: {given[1]}"
    return f"`{'.'.join(keys)}`: {leaf}" if keys else leaf
