package com.example.demo;

import android.content.Context;

/** Says of each launch whether its runs were so often too slow that races begin anew; rows are read from disk each time. */
public final class Slow {
    private Slow() {}

    public static void main(String[] arguments) throws Exception {
        GuardFiles files = new GuardFiles(new Context());
        for (int i = 1; i < arguments.length; i++) {
            GuardRows rows = new GuardRows(files, "slow.rows", 0);
            System.out.println(rows.isSlower(Double.parseDouble(arguments[i]), Double.parseDouble(arguments[0])));
            rows.save();
        }
    }
}
