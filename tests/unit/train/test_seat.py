"""What an agent passes on is read word by word, and nothing is guessed."""

from __future__ import annotations

import pytest

from relume.train.seat import Passed

WORDS = "socket=5 control=6 data=7 mirrors=8,9 bells=10,11 kept=12 every=8 life=2 began=1"


def test_every_word_has_its_place():
    passed = Passed.parse(WORDS)
    assert passed == Passed(5, 6, 7, bells=(10, 11), mirrors=(8, 9), kept=12, every=8, life=2, began=True)
    assert passed.descriptors == [5, 6, 7, 8, 9, 10, 11]
    assert Passed.parse(" ".join(reversed(WORDS.split()))) == passed


@pytest.mark.parametrize("word", WORDS.split())
def test_no_word_may_be_missing_or_something_else(word):
    name = word.split("=")[0]
    for text in (WORDS.replace(word, ""), WORDS.replace(word, f"{name}=x"), WORDS.replace(word, name)):
        with pytest.raises((ValueError, KeyError)):
            Passed.parse(text)


def test_a_run_without_a_mirror_has_none():
    assert Passed.parse(WORDS.replace("mirrors=8,9", "mirrors=")).mirrors == ()
