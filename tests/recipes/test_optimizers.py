import keras
import numpy as np
import pytest
from keras import ops

from recipes.common.training.optimizers import RectifiedLearningRate, WarmUpLinearDecay


def rectification(t, beta_2=0.999):
    """r_t of Liu et al., Algorithm 2, in float64; 0 where the variance is intractable."""
    last = 2 / (1 - beta_2) - 1
    now = last - 2 * t * beta_2**t / (1 - beta_2**t)
    if now <= 4:
        return 0.0
    return np.sqrt((now - 4) * (now - 2) * last / ((last - 4) * (last - 2) * now))


@pytest.mark.parametrize("beta_2", [0.99, 0.999])
def test_schedule_is_the_closed_form(beta_2):
    schedule = RectifiedLearningRate(0.01, beta_2)
    for step in (0, 1, 2, 3, 4, 5, 6, 10, 100, 1000, 100_000):
        expected = 0.01 * rectification(step + 1, beta_2)
        actual = float(ops.convert_to_numpy(schedule(step)))
        assert actual == pytest.approx(expected, rel=2e-3, abs=1e-9), step
    assert rectification(4) == 0
    assert rectification(5) > 0
    again = RectifiedLearningRate.from_config(schedule.get_config())
    assert vars(again) == vars(schedule)


def test_adam_under_the_schedule_is_radam():
    weight = keras.Variable([1.0, -2.0])
    optimizer = keras.optimizers.Adam(RectifiedLearningRate(0.1))
    expected = np.array([1.0, -2.0])
    first = second = np.zeros(2)
    for t in range(1, 30):
        gradient = np.array([np.cos(t), 2.0])
        optimizer.apply([ops.convert_to_tensor(gradient.astype("float32"))], [weight])
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        corrected = (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.999**t)) + 1e-7)
        expected = expected - 0.1 * rectification(t) * corrected
    np.testing.assert_allclose(ops.convert_to_numpy(weight), expected, rtol=1e-3)
    assert abs(expected[1] + 2.0) > 0.1  # it did move


def test_learning_rate_rises_then_falls():
    schedule = WarmUpLinearDecay(0.5, warm_up=4, steps=10)
    rates = [float(schedule(step)) for step in range(12)]
    np.testing.assert_allclose(rates[:4], [0.125, 0.25, 0.375, 0.5], rtol=1e-6)
    np.testing.assert_allclose(np.diff(rates[3:11]), -0.5 / 7, rtol=1e-5)
    assert rates[9] > 0
    assert rates[10] == rates[11] == 0
    assert WarmUpLinearDecay(0.5, 0, 10)(0) == 0.5
    longer = [float(WarmUpLinearDecay(0.5, 40, 10)(step)) for step in (0, 8, 9)]
    np.testing.assert_allclose(longer, [0.5 / 9, 0.5, 0.25], rtol=1e-6)
