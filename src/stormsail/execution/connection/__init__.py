"""The wire to an exchange: ccxt under our rules, its answers judged, its limits shared."""
