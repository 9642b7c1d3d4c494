package android.content;

import android.content.pm.ApplicationInfo;
import android.content.res.AssetManager;
import android.os.PowerManager;
import java.io.File;

/** An app that lies in folders. */
public final class Context {
    public static final String POWER_SERVICE = "power";

    public File getFilesDir() {
        return new File(System.getProperty("inside"));
    }

    public File getExternalFilesDir(String type) {
        return new File(System.getProperty("outside"));
    }

    public AssetManager getAssets() {
        return new AssetManager();
    }

    public ApplicationInfo getApplicationInfo() {
        return new ApplicationInfo();
    }

    public Object getSystemService(String name) {
        return new PowerManager();
    }

    public Intent registerReceiver(Object receiver, IntentFilter filter) {
        return new Intent();
    }
}
