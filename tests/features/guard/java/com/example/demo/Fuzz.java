package com.example.demo;

import android.content.Context;
import java.io.File;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Random;
import java.util.zip.CRC32;

/** Damages the files that the guard reads, a number of times, and reads them: nothing may throw. */
public final class Fuzz {
    private Fuzz() {}

    public static void main(String[] arguments) throws Exception {
        GuardFiles files = new GuardFiles(new Context());
        Random random = new Random(Long.parseLong(arguments[1]));
        byte[] rows = Files.readAllBytes(Path.of(files.file("M.rows").getPath()));
        byte[] marker = "ort-mobile guard 1\tkey\tway\t3\t17\tend".getBytes(StandardCharsets.UTF_8);
        int whole = 0;
        GuardFlag flag = new GuardFlag(files, "fuzz.use");
        GuardMarker left = new GuardMarker(files, "fuzz.try", flag);
        for (int i = 0; i < Integer.parseInt(arguments[0]); i++) {
            put(files.file("fuzz.rows"), i % 2 == 0 ? damaged(rows, random) : resealed(damaged(rows, random)));
            GuardRows read = new GuardRows(files, "fuzz.rows", random.nextLong());
            whole += read.damage.isEmpty() ? 1 : 0;
            put(files.file("fuzz.try"), damaged(marker, random));
            left.left();
            if (i % 100 == 0) {
                byte[] mapped = new byte[random.nextInt(80)];
                random.nextBytes(mapped);
                put(files.file("fuzz.use"), mapped);
                flag = new GuardFlag(files, "fuzz.use");
                flag.key();
                flag.stage();
                flag.wasRunning();
                flag.isTrusted();
            }
        }
        System.out.println("read " + whole);
    }

    private static void put(File file, byte[] bytes) throws Exception {
        Files.write(file.toPath(), bytes);
    }

    private static byte[] damaged(byte[] bytes, Random random) {
        byte[] damaged = random.nextInt(4) == 0 ? java.util.Arrays.copyOf(bytes, random.nextInt(bytes.length)) : bytes.clone();
        for (int i = random.nextInt(4); i > 0 && damaged.length > 0; i--) {
            damaged[random.nextInt(damaged.length)] = (byte) (random.nextBoolean() ? "\t\n-9e".charAt(random.nextInt(5)) : random.nextInt());
        }
        return damaged;
    }

    /** With the digest that the damaged lines have, so that they are parsed. */
    private static byte[] resealed(byte[] bytes) {
        String text = new String(bytes, StandardCharsets.UTF_8);
        String lines = text.substring(text.indexOf('\n') + 1);
        CRC32 digest = new CRC32();
        digest.update(lines.getBytes(StandardCharsets.UTF_8));
        return ("ort-mobile guard 1\t" + Long.toHexString(digest.getValue()) + "\n" + lines).getBytes(StandardCharsets.UTF_8);
    }
}
