package io.github.lockmigrate;

import java.util.Locale;

/** In which way a namespace's keys are locked. */
public enum Stage {
    /** As the old SETNX/GETSET clients do. */
    LEGACY,
    /** So that old clients and token clients both respect it. */
    BRIDGE,
    /** By a token with a TTL. */
    MODERN;

    /** The name in the record and on the command line. */
    @Override
    public String toString() {
        return name().toLowerCase(Locale.ROOT);
    }
}
