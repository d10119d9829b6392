"""Stand-in for numba (196 MB with llvmlite): vLLM imports it for its n-gram proposer, which nothing here uses."""


def jit(*arguments, **_options):
    """Decorate nothing: with a function, or with options, the function stays as it is."""
    return arguments[0] if arguments and callable(arguments[0]) else lambda function: function


njit = vectorize = guvectorize = jit
prange = range


def get_num_threads():
    return 1


def set_num_threads(_number):
    pass
