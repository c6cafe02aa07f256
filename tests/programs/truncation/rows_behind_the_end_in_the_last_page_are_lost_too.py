import os

from head import PAGE, Table, fails, path

from fastloop import DataLoader

dataset = Table(100, 3000).dataset
os.truncate(path, PAGE + 1000)
lost = (PAGE + 1000) // 100
for workers in (0, 2):
    fails(lambda: list(DataLoader(dataset, 4, num_workers=workers)), lost)
fails(lambda: dataset[lost], lost)
