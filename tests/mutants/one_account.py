"""The bugs of one account on plain numbers."""

from mutants.harness import Mutant
from mutants.nodes import integration, unit

NUMBERS = "core/machine_code/graph_numbers.py"


def numbers(*names: str) -> tuple[str, ...]:
    """Return node ids of tests of functions on plain numbers."""
    return unit("graph_numbers", *names, part="core/machine_code")


ONE_ACCOUNT = (
    Mutant(
        "a-quotient-by-zero-is-zero",
        "one-account",
        NUMBERS,
        "    if b == 0.0:\n",
        "    if b == 0.0:\n        return 0.0\n",
        numbers("test_an_operation_on_two_numbers_gives_the_bits_of_the_tensors"),
    ),
    Mutant(
        "a-maximum-loses-nan",
        "one-account",
        NUMBERS,
        "return b if a < b or b != b else a",
        "return b if a < b else a",
        numbers("test_an_operation_on_two_numbers_gives_the_bits_of_the_tensors"),
    ),
    Mutant(
        "equal-numbers-are-one-number",
        "one-account",
        NUMBERS,
        "key = (function, *map(repr, args))",
        "key = (function, *args)",
        numbers("test_equal_numbers_of_other_types_are_not_taken_for_one_another"),
    ),
    Mutant(
        "float32-is-not-rounded",
        "one-account",
        NUMBERS,
        "return ctypes.c_float(value).value",
        "return value",
        numbers("test_an_operation_on_one_number_gives_the_bits_of_the_tensor"),
    ),
    Mutant(
        "a-restart-moves-running-accounts",
        "one-account",
        "market/gymnasium/vector.py",
        "choose(before.done, opened, before)",
        "choose(before.done | True, opened, before)",
        integration(
            "gymnasium_market", "test_restarting_leaves_the_accounts_that_are_running_alone"
        ),
    ),
    Mutant(
        "a-new-episode-shows-the-old-one",
        "one-account",
        "market/gymnasium/stable_baselines.py",
        "observation[ended] = fresh[ended]",
        "observation[~ended] = fresh[~ended]",
        integration(
            "gymnasium_market",
            "test_an_account_of_stable_baselines3_is_one_of_the_vector_environment",
        ),
    ),
)
