package dev.ortmobile.runner;

import android.app.Instrumentation;
import android.content.Context;
import android.content.Intent;
import android.content.IntentFilter;
import android.content.res.AssetManager;
import android.os.Bundle;
import android.os.PowerManager;
import java.io.BufferedReader;
import java.io.File;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.FileReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.OutputStreamWriter;
import java.io.Writer;
import java.util.ArrayList;
import java.util.List;

/**
 * Runs the package in the assets and reports each turn as a test, in the words of AndroidJUnitRunner.
 *
 * <p>It is the package's own run.sh that runs, with the probe from the folder of native libraries: Android lets apps
 * execute files there alone. An app may not ask dumpsys, so what it says of heat, charge and screen is written here.
 */
public final class PackageRunner extends Instrumentation {
    private static final String ASSETS = "package";
    private static final String PROBE = "libprobe.so";
    private static final long LOOK_MILLISECONDS = 2000;
    private static final int BEGUN = 1;
    private static final int PASSED = 0;
    private static final int FAILED = -2;

    @Override
    public void onCreate(Bundle arguments) {
        super.onCreate(arguments);
        start();
    }

    @Override
    public void onStart() {
        Bundle end = new Bundle();
        int code = 0; // Activity.RESULT_CANCELED
        try {
            String words = run(getTargetContext());
            end.putString(REPORT_KEY_STREAMRESULT, "\n" + words + "\n");
            code = words.startsWith("OK") ? -1 : 0; // Activity.RESULT_OK
        } catch (IOException | InterruptedException error) {
            end.putString("longMsg", String.valueOf(error));
        }
        finish(code, end);
    }

    private String run(Context context) throws IOException, InterruptedException {
        File folder = new File(context.getFilesDir(), ASSETS);
        unpack(context.getAssets(), ASSETS, folder);
        List<String> turns = lines(new File(folder, "turns"));
        File session = new File(folder, "session");
        File home = new File(context.getExternalFilesDir(null), "session"); // what a farm can take home
        Process process = start(context, folder);
        int done = 0;
        int failed = 0;
        boolean ended = false;
        while (true) {
            state(context, folder);
            for (; done < turns.size() && new File(session, turns.get(done) + ".code").exists(); done++) {
                String turn = turns.get(done);
                copy(session, home, turn + ".");
                String code = lines(new File(session, turn + ".code")).get(0);
                failed += code.equals("0") ? 0 : 1;
                report(BEGUN, turn, done + 1, turns.size(), null);
                report(code.equals("0") ? PASSED : FAILED, turn, done + 1, turns.size(), "exit code " + code);
            }
            if (ended) {
                break;
            }
            Thread.sleep(LOOK_MILLISECONDS);
            ended = hasEnded(process);
        }
        for (String name : new String[] {"device", "package", "session"}) {
            copy(session, home, name);
        }
        String tests = done + " of " + turns.size() + " turns, " + failed + " failed";
        boolean whole = process.exitValue() == 0 && done == turns.size();
        return whole ? "OK (" + done + " tests)\n" + tests : "run.sh ended with " + process.exitValue() + ": " + tests;
    }

    private static Process start(Context context, File folder) throws IOException {
        String libraries = context.getApplicationInfo().nativeLibraryDir;
        ProcessBuilder builder = new ProcessBuilder("sh", folder + "/run.sh");
        builder.environment().put("PROBE", libraries + "/" + PROBE);
        builder.environment().put("LIBRARIES", libraries);
        builder.redirectErrorStream(true).redirectOutput(new File(folder, "run.log"));
        return builder.start();
    }

    private static boolean hasEnded(Process process) {
        try {
            process.exitValue();
            return true;
        } catch (IllegalThreadStateException running) {
            return false;
        }
    }

    /** What state.sh shows of the device, in dumpsys' words. */
    private static void state(Context context, File folder) throws IOException {
        PowerManager power = (PowerManager) context.getSystemService(Context.POWER_SERVICE);
        write(new File(folder, "state.power"), "mWakefulness=" + (power.isInteractive() ? "Awake" : "Asleep") + "\n");
        if (android.os.Build.VERSION.SDK_INT >= 29) {
            write(new File(folder, "state.thermal"), "Thermal Status: " + power.getCurrentThermalStatus() + "\n");
        }
        Intent battery = context.registerReceiver(null, new IntentFilter(Intent.ACTION_BATTERY_CHANGED));
        if (battery != null) {
            String text = "AC powered: " + (battery.getIntExtra("plugged", 0) != 0) + "\n";
            for (String name : new String[] {"level", "scale", "temperature"}) {
                text += name + ": " + battery.getIntExtra(name, 0) + "\n";
            }
            write(new File(folder, "state.battery"), text);
        }
    }

    private void report(int code, String turn, int number, int all, String text) {
        Bundle status = new Bundle();
        status.putString(REPORT_KEY_IDENTIFIER, "AndroidJUnitRunner");
        status.putString("class", PackageRunner.class.getName());
        status.putString("test", "turn" + turn);
        status.putInt("current", number);
        status.putInt("numtests", all);
        if (code == FAILED) {
            status.putString("stack", text);
        }
        sendStatus(code, status);
    }

    /** Folders have files, and files none below them: the list of a file is empty. */
    private static void unpack(AssetManager assets, String name, File to) throws IOException {
        String[] names = assets.list(name);
        if (names.length == 0) {
            write(assets.open(name), to);
        }
        for (String below : names) {
            unpack(assets, name + "/" + below, new File(to, below));
        }
    }

    private static void copy(File from, File to, String start) throws IOException {
        String[] names = from.list();
        for (String name : names == null ? new String[0] : names) {
            if (name.startsWith(start) && !name.endsWith(".part")) {
                write(new FileInputStream(new File(from, name)), new File(to, name));
            }
        }
    }

    /** Whole or not at all: state.sh reads while this writes. */
    private static void write(File file, String text) throws IOException {
        File part = new File(file + ".part");
        try (Writer writer = new OutputStreamWriter(new FileOutputStream(part), "UTF-8")) {
            writer.write(text);
        }
        part.renameTo(file);
    }

    private static void write(InputStream from, File to) throws IOException {
        to.getParentFile().mkdirs();
        try (InputStream in = from;
                OutputStream out = new FileOutputStream(to)) {
            byte[] bytes = new byte[1 << 16];
            for (int count = in.read(bytes); count >= 0; count = in.read(bytes)) {
                out.write(bytes, 0, count);
            }
        }
    }

    private static List<String> lines(File file) throws IOException {
        List<String> lines = new ArrayList<>();
        try (BufferedReader reader = new BufferedReader(new FileReader(file))) {
            for (String line = reader.readLine(); line != null; line = reader.readLine()) {
                lines.add(line);
            }
        }
        return lines;
    }
}
