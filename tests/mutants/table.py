"""All planted bugs. To add one, append an entry to the file of its part.

An entry is a unique snippet, what to put in its place, and who must notice.
"""

from mutants.adversary import ADVERSARY
from mutants.all_actions import ALL_ACTIONS
from mutants.alternatives import ALTERNATIVES
from mutants.attack import ATTACK
from mutants.bets import BETS
from mutants.capping import CAPPING
from mutants.compiled import COMPILED
from mutants.critics import CRITICS
from mutants.dead_bars import DEAD_BARS
from mutants.decisions import DECISIONS
from mutants.engines import ENGINES
from mutants.evaluation import EVALUATION
from mutants.formulas import FORMULAS
from mutants.front_door import FRONT_DOOR
from mutants.history import HISTORY
from mutants.imports import IMPORTS
from mutants.journal import JOURNAL_BUGS
from mutants.kernels import KERNELS
from mutants.leaks import LEAKS
from mutants.learner import LEARNER
from mutants.levels import LEVELS
from mutants.limits import LIMITS
from mutants.market import MARKET_DATA
from mutants.members import MEMBERS
from mutants.missed import MISSED
from mutants.modules import MODULES
from mutants.monitors import MONITORS
from mutants.one_account import ONE_ACCOUNT
from mutants.optimizers import OPTIMIZERS
from mutants.orders import ORDERS
from mutants.paths import PATH_BUGS
from mutants.performance import PERFORMANCE
from mutants.plugins import PLUGINS
from mutants.population import POPULATION
from mutants.reference import REFERENCE
from mutants.risk import RISK
from mutants.runs import RUNS
from mutants.seal import SEAL_BUGS
from mutants.settings import SETTINGS
from mutants.shortfall import SHORTFALL
from mutants.simulator import SIMULATOR_RULES
from mutants.tails import TAILS
from mutants.terms import TERMS
from mutants.trader import TRADER
from mutants.turning import TURNING
from mutants.validation import VALIDATION
from mutants.venue import VENUES
from mutants.waits import WAITS
from mutants.watching import WATCHING

MUTANTS = (
    *ADVERSARY,
    *COMPILED,
    *CRITICS,
    *HISTORY,
    *IMPORTS,
    *KERNELS,
    *MEMBERS,
    *MISSED,
    *FORMULAS,
    *MARKET_DATA,
    *SIMULATOR_RULES,
    *DEAD_BARS,
    *ALTERNATIVES,
    *ALL_ACTIONS,
    *MODULES,
    *OPTIMIZERS,
    *LEARNER,
    *WAITS,
    *RUNS,
    *SETTINGS,
    *PLUGINS,
    *WATCHING,
    *MONITORS,
    *RISK,
    *SHORTFALL,
    *EVALUATION,
    *PERFORMANCE,
    *VALIDATION,
    *PATH_BUGS,
    *SEAL_BUGS,
    *TAILS,
    *TERMS,
    *BETS,
    *CAPPING,
    *LIMITS,
    *REFERENCE,
    *LEVELS,
    *LEAKS,
    *ONE_ACCOUNT,
    *ATTACK,
    *ENGINES,
    *POPULATION,
    *ORDERS,
    *TURNING,
    *DECISIONS,
    *TRADER,
    *JOURNAL_BUGS,
    *VENUES,
    *FRONT_DOOR,
)
