"""Which model to pull where one is missing: the usual small and large models of the families in Ollama's library.

The vocabulary decides: of Qwen2.5, for example, the models up to 3B share one, and those from 7B on another. Only where
it is none of these does the name in Ollama's library.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.ollama.names import ModelName
from agent.vocabulary import Fingerprint


@dataclass(frozen=True)
class Family:
    """Models of one vocabulary.

    Attributes:
        small: The usual draft.
        large: A usual target that fits a GPU of 8 to 16 GB.
        architecture: What the files say they are.
        size: Tokens of the vocabulary.
        eos: Its EOS token.
        ends: A further token that ends texts and that relatives of the same size lack; -1 for none.
        models: Their names in the library, where all sizes of a name share the vocabulary.
    """

    small: str
    large: str
    architecture: str
    size: int
    eos: int
    ends: int = -1
    models: tuple[str, ...] = ()


FAMILIES = (
    # Llama 3.0 lacks <|eom_id|>, and the base models end with another token than the instructed ones.
    Family(
        "llama3.2:1b", "llama3.1:8b", "llama", 128_256, 128_009, 128_008, ("llama3.1", "llama3.2", "llama3.3")
    ),
    Family("qwen3:0.6b", "qwen3:8b", "qwen3", 151_936, 151_645, models=("qwen3",)),
    # Qwen2 lacks <|fim_pad|>; from 7B on the vocabulary is padded further.
    Family("qwen2.5:0.5b", "qwen2.5:3b", "qwen2", 151_936, 151_645, 151_662),
    Family("qwen2.5:7b", "qwen2.5:14b", "qwen2", 152_064, 151_645, 151_662),
    Family("gemma2:2b", "gemma2:9b", "gemma2", 256_000, 1, models=("gemma2",)),
    Family("smollm2:135m", "smollm2:1.7b", "llama", 49_152, 2, models=("smollm2",)),
)


def family_of(
    name: ModelName | None, architecture: str | None, tokenizer: Fingerprint | None
) -> Family | None:
    """Returns the family that a model is of, None if it is none of those known."""
    for family in FAMILIES:
        if (
            tokenizer is not None
            and (family.architecture, family.size, family.eos)
            == (architecture, tokenizer.size, tokenizer.eos)
            and (family.ends == -1 or family.ends in tokenizer.eog)
        ):
            return family
    if name is None or not name.in_library:
        return None
    return next((family for family in FAMILIES if name.model.lower() in family.models), None)


def pull(*models: str) -> str:
    """Returns what to do to have models."""
    return "run " + " and ".join(f"`ollama pull {model}`" for model in models)
