"""Numbers, dates, times and prices in German and English, for smoke tests of translation.

The phrases are generated. Like the other data that comes with babn, they are dedicated to the
public domain under CC0 1.0 Universal.
"""

import random
from collections.abc import Callable
from functools import lru_cache

Phrase = tuple[str, str]
"""A German phrase and its English translation."""

UNITS = {
    "de": "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn "
    "fünfzehn sechzehn siebzehn achtzehn neunzehn",
    "en": "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen",
}
TENS = {
    "de": "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig",
    "en": "twenty thirty forty fifty sixty seventy eighty ninety",
}
MONTHS = {
    "de": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
    "en": "January February March April May June July August September October November December",
}
DAYS = {
    "de": "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag",
    "en": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
}
ORDINALS = {
    "de": "ersten zweiten dritten vierten fünften sechsten siebten achten neunten zehnten elften "
    "zwölften",
    "en": "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth",
}
THINGS = (
    ("Äpfel", "apples"),
    ("Bücher", "books"),
    ("Häuser", "houses"),
    ("Hunde", "dogs"),
    ("Briefe", "letters"),
    ("Stühle", "chairs"),
    ("Fenster", "windows"),
    ("Züge", "trains"),
)

SIZES = {"train": 1200, "dev": 80, "test": 80}
"""Number of phrases in each part; the parts are disjoint."""


def german(number: int, alone: bool = True) -> str:
    """Writes a number below 1000 in words; `alone` selects eins instead of ein for a final 1."""
    units, tens = UNITS["de"].split(), TENS["de"].split()
    if number >= 100:
        rest = german(number % 100, alone) if number % 100 else ""
        return f"{units[number // 100]}hundert{rest}"
    if number >= 20:
        ten = tens[number // 10 - 2]
        return f"{units[number % 10]}und{ten}" if number % 10 else ten
    return "eins" if number == 1 and alone else units[number]


def english(number: int) -> str:
    """Writes a number below 1000 in words."""
    units, tens = UNITS["en"].split(), TENS["en"].split()
    if number >= 100:
        rest = f" and {english(number % 100)}" if number % 100 else ""
        return f"{units[number // 100]} hundred{rest}"
    if number >= 20:
        ten = tens[number // 10 - 2]
        return f"{ten}-{units[number % 10]}" if number % 10 else ten
    return units[number]


def _number(chance: random.Random) -> Phrase:
    number = chance.randrange(1000)
    return f"die Zahl {german(number)}", f"the number {english(number)}"


def _date(chance: random.Random) -> Phrase:
    day, month, number = chance.randrange(7), chance.randrange(12), chance.randrange(12)
    words = [
        (DAYS[x].split()[day], ORDINALS[x].split()[number], MONTHS[x].split()[month])
        for x in ("de", "en")
    ]
    (tag, zahl, monat), (weekday, ordinal, name) = words
    return f"am {tag}, dem {zahl} {monat}", f"on {weekday}, the {ordinal} of {name}"


def _time(chance: random.Random) -> Phrase:
    hour = chance.randrange(1, 12)
    after = hour + 1
    return chance.choice(
        [
            (f"um halb {german(after)}", f"at half past {english(hour)}"),
            (f"um Viertel nach {german(hour)}", f"at a quarter past {english(hour)}"),
            (f"um Viertel vor {german(hour)}", f"at a quarter to {english(hour)}"),
        ]
    )


def _count(chance: random.Random) -> Phrase:
    number, (many, things) = chance.randrange(2, 200), chance.choice(THINGS)
    return f"wir haben {german(number)} {many}", f"we have {english(number)} {things}"


def _price(chance: random.Random) -> Phrase:
    euros, cents = chance.randrange(2, 100), chance.randrange(2, 100)
    return (
        f"das kostet {german(euros)} Euro und {german(cents)} Cent.",
        f"that costs {english(euros)} euros and {english(cents)} cents.",
    )


def _year(chance: random.Random) -> Phrase:
    year, (many, things) = chance.randrange(1950, 2030), chance.choice(THINGS)
    return f"die {many} aus dem Jahr {year}", f"the {things} from the year {year}"


KINDS: tuple[Callable[[random.Random], Phrase], ...] = (
    _number,
    _date,
    _time,
    _count,
    _price,
    _year,
)


@lru_cache(maxsize=1)
def _all() -> list[Phrase]:
    """Returns the distinct phrases of all parts in a fixed order."""
    chance = random.Random(0)
    found: dict[Phrase, None] = {}
    while len(found) < sum(SIZES.values()):
        found[chance.choice(KINDS)(chance)] = None
    return list(found)


def phrases(part: str) -> list[Phrase]:
    """Returns the German and English phrases of `"train"`, `"dev"` or `"test"`."""
    start = 0
    for name, size in SIZES.items():
        if name == part:
            return _all()[start : start + size]
        start += size
    raise KeyError(part)
