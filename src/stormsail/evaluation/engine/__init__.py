"""The backtest engine: scenario, loop over bars, recorder, result, files."""
