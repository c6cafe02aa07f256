"""skorch: nets that make their loaders from scikit-learn's arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from framework_trials import assert_same_everywhere, assert_same_patched

skorch = pytest.importorskip("skorch", reason="skorch is not installed")


def data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(2)
    return random.random((40, 5), dtype=np.float32), random.integers(0, 3, 40)


def make_net(**more: Any) -> Any:
    from skorch.toy import make_classifier

    module = make_classifier(input_units=5, hidden_units=4, output_units=3)
    options = {"max_epochs": 2, "batch_size": 8, "lr": 0.1, "verbose": 0}
    options["iterator_train__shuffle"] = True
    return skorch.NeuralNetClassifier(module, **{**options, **more})


def fit(net: Any) -> Any:
    x, y = data()
    net.fit(x, y)
    history = [(row["train_loss"], row.get("valid_loss")) for row in net.history]
    return history, net.predict_proba(x), list(net.module_.state_dict().values())


@pytest.mark.parametrize("workers", [0, 2])
def test_a_classifier(workers: int) -> None:
    assert_same_everywhere(
        lambda cls: fit(
            make_net(
                iterator_train=cls,
                iterator_valid=cls,
                iterator_train__num_workers=workers,
            )
        )
    )


def test_data_of_several_kinds() -> None:
    """A dict of arrays, tensors, and a target that is None."""
    x, y = data()

    def program(_: Any) -> Any:
        from skorch.dataset import Dataset

        net = make_net().initialize()
        found: list[Any] = []
        for dataset in (
            Dataset({"x": x, "more": x[:, :2]}, y),
            Dataset(torch.from_numpy(x), torch.from_numpy(y)),
            Dataset(x),
            Dataset([x, y], y),
        ):
            found += list(net.get_iterator(dataset, training=True))
        return found

    assert_same_patched(program)


def test_a_grid_search() -> None:
    def program(_: Any) -> Any:
        from sklearn.model_selection import GridSearchCV

        x, y = data()
        search = GridSearchCV(make_net(train_split=False), {"lr": [0.1, 0.5]}, cv=2, refit=False)
        search.fit(x, y)
        return search.cv_results_["mean_test_score"].tolist(), search.best_params_

    assert_same_patched(program)
