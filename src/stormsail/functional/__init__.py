"""Formulas as pure tensor functions: no weights, no configuration, no I/O, no logging.

For float32 and float64. Half precision belongs inside networks: cast before calling, as a loss in
float16 overflows and one in bfloat16 has two digits.
"""
