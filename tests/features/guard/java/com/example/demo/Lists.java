package com.example.demo;

import android.content.Context;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;

/** Gives each file of a folder to the guard, and counts those that it takes. */
public final class Lists {
    private Lists() {}

    public static void main(String[] arguments) throws Exception {
        int read = 0;
        int taken = 0;
        for (File file : new File(arguments[0]).listFiles()) {
            read++;
            try {
                Guard.deny(new Context(), Files.readAllBytes(file.toPath()));
                taken++;
            } catch (IOException refused) {
                // As it should be.
            }
        }
        System.out.println(read + " read, " + taken + " taken");
    }
}
