"""Return the strategy of the tuned records for a problem, as a case of a sweep."""

from fireiron.gpu import launch
from fireiron.language import library
from fireiron.measure.sweeps import Case
from fireiron.tune.records import available


def tuned(spec, shape):
    """Return the best record for the spec on this GPU, or the nearest that is legal. The case has the strategy's name and values."""
    record = available(None).best(spec, launch.device_arch()).record
    return Case(record.strategy, library.find(record.strategy).strategy, spec, record.values, shape)
