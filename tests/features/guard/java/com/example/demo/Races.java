package com.example.demo;

import java.util.Random;

/** Races of simulated sessions: what they take stands in numbers, so that no real clock judges them. */
public final class Races {
    private Races() {}

    /** A session whose runs take a time with some noise. */
    private static final class Simulated extends GuardRunner {
        private final double typical;
        private final Random random;
        double spent;

        Simulated(double typical, Random random) {
            super(null, null, null, null, null);
            this.typical = typical;
            this.random = random;
        }

        @Override
        double run() throws ai.onnxruntime.OrtException {
            double taken = super.run();
            spent += taken;
            return taken;
        }

        @Override
        void announce() {}

        @Override
        double measured() {
            return typical * (1 + 0.02 * random.nextDouble());
        }
    }

    public static void main(String[] arguments) throws Exception {
        Random random = new Random(1);
        int[] right = new int[3];
        double longest = 0;
        double[] shares = {0.98, 0.85, 1.2};
        for (int i = 0; i < 1000; i++) {
            double typical = 0.002 + 0.148 * random.nextDouble();
            for (int j = 0; j < shares.length; j++) {
                Simulated first = new Simulated(typical, random);
                Simulated second = new Simulated(typical * shares[j], random);
                right[j] += GuardRace.isFaster(second, first, GuardRace.CAP_SECONDS) == (j == 1) ? 1 : 0;
                longest = Math.max(longest, first.spent + second.spent);
            }
        }
        System.out.println("ties kept " + right[0]);
        System.out.println("faster found " + right[1]);
        System.out.println("slower refused " + right[2]);
        // Of a model of two microseconds: as many times as of one of a millisecond
        Simulated fast = new Simulated(2e-6, random);
        Simulated other = new Simulated(2e-6, random);
        GuardRace.isCalm(fast);
        GuardRace.isFaster(other, fast, GuardRace.CAP_SECONDS);
        System.out.println("kept " + (fast.count() + other.count() <= 2_300 ? "few" : "many") + " times of fast runs");
        System.out.println("longest " + (longest <= 2.1 ? "at most 2.1 s" : longest + " s"));
    }
}
