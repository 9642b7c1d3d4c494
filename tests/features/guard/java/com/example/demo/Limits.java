package com.example.demo;

/** Limits that tests shorten: nobody waits twenty seconds for a driver that hangs. */
public final class Limits {
    private Limits() {}

    public static void set(long milliseconds, int noise) {
        GuardRace.noise = noise;
        GuardAttempt.limitMilliseconds = milliseconds;
    }
}
