from head import interrupt, loader_of

for workers in (0, 1):
    iterator = iter(loader_of(workers, 80))
    next(iterator)
    interrupt()
    try:
        next(iterator)
    except KeyboardInterrupt:
        pass
    else:
        raise AssertionError("no KeyboardInterrupt")
    rest = [batch[:, 0].tolist() for (batch,) in iterator]
    assert rest == [list(range(8)) * 10, [4], [5]][1 - workers :], rest
