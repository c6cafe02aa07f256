"""A package nvtx that prints its ranges."""


def push_range(message, domain=None):
    print("push", message, domain)


def pop_range(domain=None):
    print("pop", domain)
