"""Images of torchvision's ImageFolder that are made where they stay in the batch."""

from pathlib import Path

import pytest
from image_folders import write_folder
from vision_cases import v2

from fastloop.adapters.torchvision_folder import FolderSamples
from fastloop.compat import verification
from fastloop.data.collate import lend, make_collate

if v2 is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)
from torchvision import datasets, transforms


def test_samples_that_are_compared_lie_in_the_batch_as_others_do(tmp_path: Path) -> None:
    verification.verification_of.cache_clear()
    recipe = transforms.Compose([transforms.RandomResizedCrop(24), transforms.ToTensor()])
    samples = FolderSamples(datasets.ImageFolder(str(write_folder(tmp_path)), recipe))
    fast = make_collate()
    lend(fast)
    try:
        made = samples.__getitems__(range(6))
    finally:
        lend(None)
    assert samples._verification.unchecked == 0
    batch = fast(made)[0]
    assert [image.data_ptr() for image, _ in made] == [image.data_ptr() for image in batch]
