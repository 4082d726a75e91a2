"""Texts and bytes with letters dropped, doubled, moved and changed."""

import random

LETTERS = "%#[](){}<>=:;.,@_-+*/\\0123456789 abkmnMNK\n\r\t\"'\0é\u2028\ud800\U0001f600eE"

WORDS = (
    "NaN",
    "Infinity",
    "-1",
    "1e999",
    "null",
    "true",
    "[[",
    "]]",
    "9" * 30,
    "0x10",
    "1_000",
    "int",
    "float",
    "for",
    "__import__",
    '"type"',
    "//",
    "/*",
    "#",
    "  ",
)


def damaged(choose: random.Random, text: str, most: int = 3) -> str:
    """A text with up to `most` damages."""
    for _ in range(choose.randint(1, most)):
        place, end = choose.randrange(len(text) + 1), choose.randrange(len(text) + 1)
        match choose.randrange(9):
            case 0:
                text = text[:place] + text[place + choose.randint(1, 3) :]
            case 1:
                text = text[:place] + choose.choice(LETTERS) + text[place:]
            case 2:
                text = text[:place] + choose.choice(LETTERS) + text[place + 1 :]
            case 3:
                lines = text.split("\n")
                lines.insert(choose.randrange(len(lines)), choose.choice(lines))
                text = "\n".join(lines)
            case 4:
                text = text[:place] + text[end : end + choose.randint(1, 20)] + text[place:]
            case 5:
                text = text[:place] + choose.choice(WORDS) + text[place:]
            case 6 if choose.random() < 0.3:
                text = text[:place]
            case 6:
                lines = text.split("\n")
                del lines[choose.randrange(len(lines))]
                text = "\n".join(lines)
            case 7 if place < len(text):
                text = text[:place] + chr(ord(text[place]) ^ (1 << choose.randrange(7))) + text[place + 1 :]
            case 8:
                digits = [number for number, letter in enumerate(text) if letter.isdigit()]
                if digits:
                    place = choose.choice(digits)
                    text = text[:place] + choose.choice(("0", "7", "-3", "64", "2147483648")) + text[place + 1 :]
    return text


def damaged_bytes(choose: random.Random, data: bytes) -> bytes:
    """Bytes with a bit flipped, a part dropped, doubled, or made of others."""
    place, end = choose.randrange(len(data) + 1), choose.randrange(len(data) + 1)
    match choose.randrange(5):
        case 0 if place < len(data):
            return data[:place] + bytes([data[place] ^ (1 << choose.randrange(8))]) + data[place + 1 :]
        case 1:
            return data[:place]
        case 2:
            return data[:place] + choose.randbytes(choose.randint(1, 8)) + data[place:]
        case 3:
            return data[:place] + data[place + choose.randint(1, 64) :]
        case _:
            return data[:place] + data[min(place, end) : max(place, end)] + data[place:]
