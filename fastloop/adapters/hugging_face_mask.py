"""``torch_mask_tokens()`` of transformers' DataCollatorForLanguageModeling: which tokens of a batch
are masked. The numbers are drawn natively, of torch's default generator.

docs/internals/zero-change.md tells the rules.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from itertools import cycle, product
from typing import Any

import torch

from fastloop._core import mask_tokens
from fastloop.adapters.hugging_face_battery import tokenizers
from fastloop.adapters.originals import Battery, find_obstacle, judge, methods_of
from fastloop.base.checks import look_up
from fastloop.compat.tensors import is_plain
from fastloop.compat.torch_parts import Methods
from fastloop.compat.verdicts import Verdict
from fastloop.compat.verification import running_original, runs_original, same_bits, verification_of
from fastloop.data.collate import fetch
from fastloop.data.columns import NotCoveredError, leave_if

_MODULE, _CLASS = "transformers.data.data_collator", "DataCollatorForLanguageModeling"
_TOKENIZERS = "transformers.tokenization_utils_base"
_HOLDS = {"self.whole_word_mask": False}
_torchs = Methods((torch, "bernoulli"), (torch, "randint"), (torch, "full"))
_SHAPES = (1, 1), (3, 7), (9, 40), (2, 700)
_PROBABILITIES = (
    (0.15, 0.8, 0.1),
    (0.5, 0.3, 0.6),
    (1.0, 1.0, 0.0),
    (0.9, 0.0, 1.0),
    (0.3, 0.5, 0.0),
)


def _check_ids(name: str, ids: Any, dtypes: tuple[torch.dtype, ...]) -> None:
    is_odd = type(ids) is not torch.Tensor or ids.dtype not in dtypes or not ids.is_cpu
    is_odd = is_odd or not is_plain(ids) or not ids.is_contiguous()
    is_odd = is_odd or ids.ndim != 2 or ids.numel() == 0
    is_odd = is_odd or ids.is_inference()  # torch decides who may change the tensor
    leave_if(is_odd, f"{name} are not a plain tensor of ids")


def _find_special(tokenizer: Any, ids: Any, special: Any) -> tuple[Any, tuple[int, ...]]:
    """Return a bool tensor of the tokens that stay, or None and the ids of such tokens."""
    if special is not None:
        _check_ids("special tokens", special, (torch.int64, torch.bool))
        leave_if(special.shape != ids.shape, "special tokens have another shape than the ids")
        return special.bool(), ()
    theirs = sys.modules[_TOKENIZERS].PreTrainedTokenizerBase.get_special_tokens_mask
    is_own = look_up(tokenizer, "get_special_tokens_mask") != theirs.__get__(tokenizer)
    leave_if(is_own, f"a {type(tokenizer).__name__} finds special tokens in its own way")
    return None, tuple(tokenizer.all_special_ids)


def _read(
    collator: Any, inputs: Any, special_tokens_mask: Any = None, offset_mapping: Any = None
) -> tuple[Any, ...]:
    """Return the arguments of ``mask_tokens()`` behind the tensors. Raises NotCoveredError."""
    leave_if(collator.whole_word_mask, "whole_word_mask=True")
    leave_if(collator.generator is not None, "the collator has a generator of its own")
    _check_ids("input_ids", inputs, (torch.int64,))
    tokenizer, replaced = collator.tokenizer, collator.mask_replace_prob
    cls = type(tokenizer)  # the functions of a program's class may do anything
    is_theirs = cls.__module__.partition(".")[0] == "transformers"
    leave_if(not is_theirs, f"a {cls.__name__} is not a tokenizer of transformers")
    special = _find_special(tokenizer, inputs, special_tokens_mask)
    changes = replaced != 1 and collator.random_replace_prob != 0
    changed = collator.random_replace_prob / (1 - replaced) if changes else 0.0
    probabilities = collator.mlm_probability, replaced, changed
    is_odd = not all(type(each) is float and 0 <= each <= 1 for each in probabilities)
    leave_if(is_odd, f"the probabilities are {probabilities}")
    mask_id = tokenizer.convert_tokens_to_ids(tokenizer.mask_token)
    words = len(tokenizer) if changes else 0
    leave_if(type(mask_id) is not int or (changes and words < 1), "the tokenizer has no words")
    return *special, *probabilities, mask_id, words


def _mask(given: tuple[Any, ...], inputs: Any, generator: Any) -> tuple[Any, Any]:
    labels = torch.empty_like(inputs)
    mask_tokens(generator, inputs, labels, *given)
    # Autograd asks for the count of changes: transformers changes the ids once or twice.
    torch.autograd.graph.increment_version([inputs] * (2 if given[-1] else 1) + [labels])
    return inputs, labels


def _find_difference(is_unknown: bool) -> str:
    """Return in which case masked tokens differ from transformers', or ""."""
    cls = getattr(sys.modules[_MODULE], _CLASS)
    specials = cycle((None, torch.int64, torch.bool))
    with running_original(), torch.inference_mode(False), torch.random.fork_rng(devices=()):
        for seed, (tokenizer, shape, each) in enumerate(
            product(tokenizers(mask_token="5", sep_token="9"), _SHAPES, _PROBABILITIES)
        ):
            torch.manual_seed(seed)
            ids, dtype = torch.randint(0, 12, shape), next(specials)
            special = None if dtype is None else torch.randint(0, 2, shape).to(dtype)
            names = "mlm_probability", "mask_replace_prob", "random_replace_prob"
            collator = cls(tokenizer, **dict(zip(names, each, strict=True)))
            private = torch.Generator()
            private.set_state(torch.get_rng_state())
            made = _mask(_read(collator, ids, special), ids.clone(), private)
            is_same = same_bits(collator.torch_mask_tokens(ids, special), made)
            if not is_same or not torch.equal(private.get_state(), torch.get_rng_state()):
                return f"masked tokens differ with the probabilities {each}"
    return ""


@functools.cache
def find_unknown() -> Verdict:
    """Tell whether fastloop knows what the collator draws."""
    return judge(["mask"], Battery("masks", "masks", _find_difference, True, _HOLDS))


prepare = find_unknown


def _find_obstacle() -> str:
    replaced = methods_of("collators", plans=frozenset(["mask"])).find_replaced()
    if replaced := replaced or _torchs.find_replaced():
        return f"{replaced} was replaced"
    # The battery runs without a mode.
    return find_obstacle() or find_unknown().why


def make_call(seam: Any, before: Callable[..., Any]) -> Callable[..., Any]:
    def torch_mask_tokens(self: Any, inputs: Any, *args: Any, **named: Any) -> Any:
        if not (seam.is_on or fetch.is_served) or runs_original():
            return before(self, inputs, *args, **named)
        why, call = "", functools.partial(before, self, inputs, *args, **named)
        try:
            leave_if(why := _find_obstacle(), why)
            given = _read(self, inputs, *args, **named)
            arguments = "masks", "transformers'", 1, not find_unknown().about
            verification = verification_of(f"masks {given[1:]}", *arguments)
            leave_if(verification.falls_back, "masks have differed")
        except NotCoveredError as error:
            why = str(error)
        except Exception as error:  # transformers raises its own error, if there is one
            why = type(error).__name__
        if why:
            return seam.call_left(why, call)
        if verification.is_due(len(inputs)):
            copy = inputs.clone()
            return verification.compare(call, functools.partial(_mask, given, copy))
        made = _mask(given, inputs, torch.default_generator)
        seam.native += 1
        return made

    return torch_mask_tokens
