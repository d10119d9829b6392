"""Stand-in for numba (196 MB with llvmlite): vLLM imports it for its n-gram proposer, unused here."""


def jit(*arguments, **_options):
    """Return the function unchanged, with or without options."""
    return arguments[0] if arguments and callable(arguments[0]) else lambda function: function


njit = vectorize = guvectorize = jit
prange = range


def get_num_threads():
    return 1


def set_num_threads(_number):
    pass
