"""count_parameters: tied parameters once, trainable ones apart."""

import pytest
import torch
from torch import nn

import fastloop


def test_parameters_are_counted_by_kind() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2).half())
    model[0].weight.requires_grad = False
    count = fastloop.count_parameters(model)
    assert (count.total, count.trainable, count.frozen) == (16 + 8 + 10, 22, 12)
    assert count.bytes == 24 * 4 + 10 * 2
    assert str(count) == "34 parameters (22 trainable, 12 frozen), 116 B"


def test_tied_parameters_count_once_and_are_named() -> None:
    model = nn.Module()
    model.embedding, model.head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
    model.head.weight = model.embedding.weight
    count = fastloop.count_parameters(model)
    assert (count.total, count.tied) == (40, ("head.weight",))
    assert "tied, counted once: head.weight" in str(count)


def test_parameters_without_memory_are_not_taken_for_tied() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    assert fastloop.count_parameters(model).total == 40
    empty = nn.ParameterList([nn.Parameter(torch.empty(0)), nn.Parameter(torch.empty(0))])
    assert fastloop.count_parameters(empty).tied == ()


def test_a_lazy_parameter_has_no_size() -> None:
    with pytest.raises(ValueError, match="uninitialized parameter"):
        fastloop.count_parameters(nn.Sequential(nn.Linear(2, 3), nn.LazyLinear(5)))


def test_only_a_module_is_taken() -> None:
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got \[Linear"):
        fastloop.count_parameters([nn.Linear(1, 1)])  # type: ignore[arg-type]
