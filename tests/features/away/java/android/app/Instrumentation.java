package android.app;

import android.content.Context;
import android.os.Bundle;

/** What am instrument starts: it prints what it is told, a line each. */
public class Instrumentation {
    public static final String REPORT_KEY_IDENTIFIER = "id";
    public static final String REPORT_KEY_STREAMRESULT = "stream";

    public void onCreate(Bundle arguments) {}

    public void onStart() {}

    public void start() {
        onStart();
    }

    public void sendStatus(int code, Bundle status) {
        System.out.println("status " + code + " " + status);
    }

    public void finish(int code, Bundle results) {
        System.out.println("finish " + code + " " + results);
    }

    public Context getTargetContext() {
        return new Context();
    }
}
