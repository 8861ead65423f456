"""Tests of agent.envfile."""

import pytest

from agent.envfile import edited, parse, render

SETTINGS = {
    "SPECDEC_PORT": "9000",
    "SPECDEC_OLLAMA_MODELS": "/srv/my models/ollama",
    "SPECDEC_FORBID": 'a"b,c\\d,$HOME,`e`',
}


def test_round_trip() -> None:
    """What is written is read again, whatever characters it holds, and is not taken for edited."""
    text = render(SETTINGS)
    assert parse(text) == SETTINGS
    assert not edited(text) and not edited(render({}))


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("9000", "9001"),
        lambda text: text + "SPECDEC_K=1\n",
        lambda text: text.partition("\n")[2],
        lambda _: "",
        lambda _: "SPECDEC_PORT=9000\n",
    ],
)
def test_edits_are_noticed(change: object) -> None:
    """Any change counts as an edit, and so does a file that install has not written."""
    assert callable(change)
    assert edited(change(render(SETTINGS)))


def test_what_systemd_reads() -> None:
    """Comments and other lines set nothing; quotes are taken off, and a value without them may hold blanks."""
    text = '# A=1\n; B=2\nC=3 # no comment\n\n D = 4\nE= 5 6 \nF=\'$7\'\nnonsense\n=8\nG="9\\""\nG=10\n'
    assert parse(text) == {"C": "3 # no comment", "E": "5 6", "F": "$7", "G": "10"}
