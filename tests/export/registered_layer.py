"""A layer in a user's own module, to test models with classes that a process must import."""

import keras


@keras.saving.register_keras_serializable(package="export_tests")
class Doubled(keras.layers.Layer):
    def call(self, inputs):
        return 2.0 * inputs


@keras.saving.register_keras_serializable(package="export_tests")
def halved(inputs):
    return 0.5 * inputs


class Unregistered(Doubled):
    pass
