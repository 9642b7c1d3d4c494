package com.example.demo;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Random;

/**
 * How much slower than the fastest the choice is, once it is final, on thousands of simulated phones.
 *
 * <p>A phone has two to four ways, units that wake up, bursts of other work, little cores and heat. The bundle's order is
 * that of another phone of the class, a quarter off.
 */
public final class Regret {
    private static final int MOST_RACES = 6;
    private static final int AGREEING_RACES = 3;
    private static final int MOST_LAUNCHES = 40;

    private final Random random;
    private final double[] typical;
    private final boolean[] isCpu;
    private final double[] sigma;
    private final double[] little;
    private final double[] slow;
    private final double ratio;
    private final double burst;
    private final double heat;
    private final double ramp;
    private double now;
    private double until;
    private double since;
    private int last;
    private boolean isSlow;

    private Regret(Random random, boolean isBusy) {
        this.random = random;
        int ways = 2 + random.nextInt(3);
        typical = new double[ways];
        isCpu = new boolean[ways];
        sigma = new double[ways];
        little = new double[ways];
        slow = new double[ways];
        typical[0] = Math.exp(between(Math.log(0.002), Math.log(0.25)));
        isCpu[0] = true;
        for (int way = 1; way < ways; way++) {
            typical[way] = typical[0] * Math.exp(-0.3 + 0.7 * random.nextGaussian());
        }
        if (ways > 2 && random.nextBoolean()) {
            isCpu[1] = true;
            typical[1] = typical[0] * Math.exp(0.15 * random.nextGaussian());
        }
        for (int way = 0; way < ways; way++) {
            sigma[way] = (isCpu[way] ? between(0.03, 0.12) : between(0.02, 0.08)) * (isBusy ? 1.6 : 1);
            little[way] = (isCpu[way] ? between(0.02, 0.15) : 0.01) * (isBusy ? 2 : 1);
            slow[way] = isCpu[way] ? between(1.2, 2.0) : between(1.0, 1.25);
        }
        ratio = between(1.8, 4);
        burst = between(0.1, 0.45) * (isBusy ? 1.5 : 1);
        heat = between(0, 0.12) * (isBusy ? 2 : 1);
        ramp = between(0, 0.6);
    }

    private double between(double low, double high) {
        return low + (high - low) * random.nextDouble();
    }

    private double run(int way) {
        if (now >= until) {
            isSlow = random.nextDouble() < burst;
            until = now - 0.15 * Math.log(1 - random.nextDouble());
        }
        if (way != last) {
            last = way;
            since = now;
        }
        double taken = typical[way] * Math.exp(sigma[way] * random.nextGaussian());
        taken *= random.nextDouble() < little[way] ? ratio : 1;
        taken *= isSlow ? slow[way] : 1;
        taken *= 1 + heat * Math.min(now / 2, 1.5);
        taken *= 1 + ramp * Math.exp(-(now - since) / 0.03) * (isCpu[way] ? 0.5 : 1);
        now += taken;
        return taken;
    }

    /** A session in a race on this phone. */
    private final class Simulated extends GuardRunner {
        private final int way;

        Simulated(int way) {
            super(null, null, null, null, null);
            this.way = way;
        }

        @Override
        void announce() {}

        @Override
        double measured() {
            return Regret.this.run(way);
        }
    }

    private List<Integer> order() {
        double[] guess = new double[typical.length];
        List<Integer> order = new ArrayList<>();
        for (int way = 0; way < guess.length; way++) {
            guess[way] = typical[way] * Math.exp(0.25 * random.nextGaussian());
            order.add(way);
        }
        order.sort((a, b) -> Double.compare(guess[a], guess[b]));
        return order;
    }

    /** Who wins the race of a launch, as the guard runs it; -1 where the phone is not calm. */
    private int race(List<Integer> order) throws Exception {
        now = 0;
        until = 0;
        last = -1;
        Simulated best = null;
        double seconds = GuardRace.CAP_SECONDS / (order.size() - 1);
        for (int way : order) {
            Simulated racer = new Simulated(way);
            if (best == null && !GuardRace.isCalm(racer)) {
                return -1;
            }
            best = best == null || GuardRace.isFaster(racer, best, seconds) ? racer : best;
        }
        return best.way;
    }

    /** What three races in a row chose; -1 where the bundle's order stays. */
    private int settled(List<Integer> order) throws Exception {
        int fastest = -1;
        int agreed = 0;
        int races = 0;
        for (int launch = 0; launch < MOST_LAUNCHES && races < MOST_RACES; launch++) {
            int winner = race(order);
            if (winner >= 0) {
                races++;
                agreed = winner == fastest ? agreed + 1 : 1;
                if (agreed == AGREEING_RACES) {
                    return winner;
                }
                fastest = winner;
            }
        }
        return -1;
    }

    private double regret(int way) {
        double least = typical[0];
        for (double seconds : typical) {
            least = Math.min(least, seconds);
        }
        return typical[way] / least - 1;
    }

    public static void main(String[] arguments) throws Exception {
        int phones = Integer.parseInt(arguments[0]);
        for (boolean isBusy : new boolean[] {false, true}) {
            double sum = 0;
            double first = 0;
            int wrong = 0;
            int settled = 0;
            for (int i = 0; i < phones; i++) {
                Regret phone = new Regret(new Random(i), isBusy);
                List<Integer> order = phone.order();
                int chosen = phone.settled(order);
                first += phone.regret(order.get(0)) / phones;
                if (chosen >= 0) {
                    settled++;
                    sum += phone.regret(chosen);
                    wrong += phone.regret(chosen) > 0.05 ? 1 : 0;
                }
            }
            System.out.printf(Locale.US, "%s settled %.1f regret %.2f over5 %.1f without %.2f%n", isBusy ? "busy" : "usual",
                    100.0 * settled / phones, 100 * sum / settled, 100.0 * wrong / settled, 100 * first);
        }
    }
}
