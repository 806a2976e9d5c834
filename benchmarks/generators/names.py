"""Parts of the names of invented persons and companies. Surnames are made of syllables."""

# ruff: noqa: SIM905  (two hundred quoted words are harder to read than a paragraph of them)

from __future__ import annotations

import unicodedata
from itertools import product
from typing import Final

FIRST_NAMES: Final = """
    Ada Aisha Alba Amara Amir Anaïs Anders Anja Anton Arjun Astrid Aylin Bela Benoît Bjarte Bruno Carla Carmen Chidi
    Chloé Clara Cyril Dalia Dario Diego Dilan Dora Eda Efe Eira Elif Elio Emeka Emil Enzo Esra Eva Farid Fatou Felix
    Fiona Freya Gael Gemma Goran Greta Hana Haruki Heidi Henrik Hugo Ida Igor Ilse Imani Inés Iris Ivan Jana Jiří Jonas
    Joana Juno Kai Kaito Kamal Karin Kenji Kiran Klara Kofi Lale Lars Leila Lena Leon Lian Lina Livia Luca Lucía Luis
    Maja Malik Mara Marco Marit Mateo Maya Mei Mila Milan Mina Miro Nadia Naomi Neela Nico Nils Nina Noa Noé Noor Nuno
    Olga Omar Oona Oskar Otto Pablo Paula Pavel Petra Pia Priya Rafael Raúl Ravi Rhea Rita Rocío Rosa Ruben Sana Sára
    Selma Silas Simon Sofia Sven Tara Tariq Tessa Theo Tiago Timo Tom Uma Ute Vera Viktor Wanda Yara Yuki Yusuf Zara Zoë
""".split()

SURNAMES: Final = [
    start + middle + end
    for start, middle, end in product(
        "Al Bar Bel Cor Dal Dor El Fal Fen Gar Hal Har Jor Kel Kor Lan Mar Mel Nor Or Pel Ros Sal Tor Val Wen".split(),
        "a an di e en i in o ov u".split(),
        "berg court dal ez field gård ini ko lund mann más nen ova rup sen ski son stein vic wood".split(),
    )
]

TITLES: Final = {
    "Engineer": 16, "Senior Engineer": 10, "Analyst": 9, "Account Manager": 8, "Consultant": 8, "Specialist": 7,
    "Technician": 7, "Assistant": 6, "Team Lead": 5, "Project Manager": 5, "Product Manager": 3, "Designer": 3,
    "Architect": 2, "Director": 2, "Head of Department": 1, "Vice President": 1,
}  # fmt: skip
"""Title → weight."""

DEPARTMENTS: Final = {
    "Engineering": 20, "Sales": 15, "Operations": 14, "Customer Support": 12, "Manufacturing": 9, "Finance": 6,
    "Marketing": 6, "Human Resources": 4, "Logistics": 4, "Quality": 3, "Legal, Risk and Compliance": 2,
    "Research, Applied": 2, "Procurement": 2, "Facilities": 1,
}  # fmt: skip
"""Department → weight. Some hold a comma, as real ones do, and are quoted in CSV."""

TENANTS: Final = [
    first + second
    for first, second in product(
        "Acorn Amber Basalt Birch Cedar Cobalt Comet Copper Coral Delta Ember Falcon Fjord Garnet Harbor Indigo "
        "Juniper Lunar Maple Meridian Nimbus Onyx Orchid Pebble Quartz Raven Saffron Summit Tundra Willow".split(),
        "works labs foods bank health energy logistics media systems care".split(),
    )
]


def ascii_of(name: str) -> str:
    """Return ``name`` as in an e-mail address, without accents."""
    return unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
